package tokens_test

import (
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"

	"aloft/backends/tokens"
)

const prose = "In the beginning God created the heaven and the earth. And the earth was without form, and void; " +
	"and darkness was upon the face of the deep. And the Spirit of God moved upon the face of the waters. "

// benchmarked are counters of each kind, by name.
func benchmarked(b testing.TB) map[string]*tokens.Counter {
	r := rand.New(rand.NewPCG(7, 8))
	all := strings.Join(texts(300), " ") + strings.Repeat(prose, 5)
	made := func(m meta) *tokens.Counter {
		c, err := tokens.GGUF(m)
		if err != nil {
			b.Fatal(err)
		}
		return c
	}
	llama3 := bpe(all[len(all)-6000:], 300)
	llama3["tokenizer.ggml.pre"] = "llama-bpe"
	return map[string]*tokens.Counter{
		"bytelevel": counterOf(b, filepath.Join("..", "..", "configs", "models", "aloft-lm.gguf")),
		"wordpiece": counterOf(b, filepath.Join("..", "..", "configs", "models", "aloft-encoder.gguf")),
		"llama3":    made(llama3),
		"sentence":  made(sentencePiece(r, all, "llama")),
		"unigram":   made(sentencePiece(r, all, "t5")),
	}
}

func BenchmarkCount(b *testing.B) {
	for name, c := range benchmarked(b) {
		for kind, text := range map[string]string{"prose": prose, "chinese": strings.Repeat("你好，世界。中文测试", 10), "code": strings.Repeat("func (c *Counter) Count(text []byte) int { return len(text) / 4 }\n", 4), "base64": strings.Repeat("aGVsbG8gd29ybGQhIQ09zZWNyZXQ", 10)} {
			b.Run(name+"/"+kind, func(b *testing.B) {
				b.ReportAllocs()
				b.SetBytes(int64(len(text)))
				for b.Loop() {
					c.Count([]byte(text))
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(text)), "ns/byte")
			})
		}
	}
}
