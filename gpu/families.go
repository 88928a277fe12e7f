package gpu

import (
	"slices"
	"strings"
)

const mib = 1 << 20

// families is NVIDIA's MIG geometry as data: the supported profiles of the MIG
// user guide and the placements that `nvidia-smi mig -lgipp` prints.
//
// Memory is what the driver reports for an instance, for A30, A100 and
// H100-80GB and two sizes of H100-94GB. The rest is estimated low: the memory
// slices' share of the whole less 320 MiB, which holds on every measured part;
// H200 and B200 starts follow from the documented fractions. Confirm both with
// a read-only listing when such a card is at hand.
var families = []Family{
	{
		Name: "A30-24GB", Compute: 4, Slices: 4, Bytes: 24000 * mib,
		Profiles: []Profile{
			{"1g.6gb", 0, 14, 1, 1, []int{0, 1, 2, 3}, 4, 5952 * mib},
			{"1g.6gb+me", 7, 21, 1, 1, []int{0, 1, 2, 3}, 1, 5952 * mib},
			{"2g.12gb", 1, 5, 2, 2, []int{0, 2}, 2, 11968 * mib},
			{"2g.12gb+me", 8, 6, 2, 2, []int{0, 2}, 1, 11968 * mib},
			{"4g.24gb", 3, 0, 4, 4, []int{0}, 1, 24000 * mib},
		},
	},
	seven("A100-40GB",
		"1g.5gb 1g.10gb 2g.10gb 3g.20gb 4g.20gb 7g.40gb",
		[6]int64{4864, 9856, 9856, 19968, 19968, 40192}),
	seven("A100-80GB",
		"1g.10gb 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb",
		[6]int64{9728, 19968, 19968, 40192, 40192, 80384}),
	seven("H100-80GB",
		"1g.10gb 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb",
		[6]int64{9984, 20096, 20096, 40448, 40448, 81152}),
	seven("H100-94GB",
		"1g.12gb 1g.24gb 2g.24gb 3g.47gb 4g.47gb 7g.94gb",
		[6]int64{11600, 23520, 23520, 47488, 47488, 95360}),
	seven("H200-141GB",
		"1g.18gb 1g.35gb 2g.35gb 3g.71gb 4g.71gb 7g.141gb",
		[6]int64{17568, 35456, 35456, 71232, 71232, 143104}),
	seven("B200-180GB",
		"1g.23gb 1g.45gb 2g.45gb 3g.90gb 4g.90gb 7g.180gb",
		[6]int64{22496, 45312, 45312, 90944, 90944, 182528}),
}

// seven is a family with 7 compute slices on an axis of 8 memory slices. All
// such parts share enums, ids and starts; names and sizes (MiB) differ.
func seven(family, names string, size [6]int64) Family {
	n := strings.Fields(names)
	return Family{
		Name: family, Compute: 7, Slices: 8, Bytes: size[5] * mib,
		Profiles: []Profile{
			// No start at 7 for one slice: hence 7 of them, not 8.
			{n[0], 0, 19, 1, 1, []int{0, 1, 2, 3, 4, 5, 6}, 7, size[0] * mib},
			{n[0] + "+me", 7, 20, 1, 1, []int{0, 1, 2, 3, 4, 5, 6}, 1, size[0] * mib},
			{n[1], 9, 15, 1, 2, []int{0, 2, 4, 6}, 4, size[1] * mib},
			{n[2], 1, 14, 2, 2, []int{0, 2, 4}, 3, size[2] * mib},
			{n[3], 2, 9, 3, 4, []int{0, 4}, 2, size[3] * mib},
			{n[4], 3, 5, 4, 4, []int{0}, 1, size[4] * mib},
			{n[5], 4, 0, 7, 8, []int{0}, 1, size[5] * mib},
		},
	}
}

// products tells a family from a product name's word and the memory in GiB:
// "NVIDIA A100-SXM4-80GB" and "NVIDIA A100 80GB PCIe" are one family.
var products = []struct {
	word     string
	min, max int64 // GiB
	family   string
}{
	{"A30", 20, 28, "A30-24GB"},
	{"A100", 36, 44, "A100-40GB"},
	{"A100", 72, 88, "A100-80GB"},
	{"A800", 36, 44, "A100-40GB"}, // the A100 and H100 with slower links
	{"A800", 72, 88, "A100-80GB"},
	{"H100", 72, 88, "H100-80GB"},
	{"H800", 72, 88, "H100-80GB"},
	{"H100", 90, 95, "H100-94GB"},
	{"H200", 130, 150, "H200-141GB"},
	{"B200", 170, 184, "B200-180GB"},
}

// FamilyOf tells the MIG family of a device by its product name and total
// memory in bytes; "" when the table has none, which is not to say that the
// device has no MIG.
func FamilyOf(model string, bytes int64) string {
	words := strings.FieldsFunc(model, func(r rune) bool { return r == ' ' || r == '-' })
	gib := bytes >> 30
	for _, p := range products {
		if slices.Contains(words, p.word) && p.min <= gib && gib <= p.max {
			return p.family
		}
	}
	return ""
}
