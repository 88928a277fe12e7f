package openai

import "github.com/cespare/xxhash/v2"

// A prompt is hashed in blocks of 256 bytes, about 64 tokens of English: engines
// cache prefixes in blocks of 16 to 64 tokens, so finer ones would tell apart
// what an engine reuses as a whole. 64 blocks are the first 16 KiB, which hold
// the system prompt and tools that chats share; what comes after is their own.
const (
	prefixBlock  = 256 // bytes
	prefixBlocks = 64
)

// PrefixHashes appends a hash for each whole leading block of the prompt, at
// most prefixBlocks: the n-th is that of everything up to the n-th block's end,
// so two prompts share their first n blocks exactly when their n-th hashes
// agree. text is Scan.Text; where one text ends and the next begins counts. The
// hashes are the same in every process.
func PrefixHashes(dst []uint64, text [][]byte) []uint64 {
	var d xxhash.Digest
	d.Reset()
	room, left := prefixBlock, prefixBlocks
	add := func(b []byte) {
		for len(b) > 0 && left > 0 {
			n := min(room, len(b))
			_, _ = d.Write(b[:n]) // cannot fail
			b = b[n:]
			if room -= n; room == 0 {
				dst = append(dst, d.Sum64())
				room = prefixBlock
				left--
			}
		}
	}
	for _, t := range text {
		if left == 0 {
			break
		}
		add(t)
		add(boundary)
	}
	return dst
}

// boundary stands between texts; no valid text has this byte.
var boundary = []byte{0xff}
