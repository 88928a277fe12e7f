package openai

import "aloft/backends"

// AppendMergedEmbeddings appends one request body over all rows of reqs.
func AppendMergedEmbeddings(dst []byte, model string, reqs []*backends.Request) []byte { return dst }

// SplitEmbeddings returns each row's raw embedding in index order and the prompt tokens (-1 = none).
func SplitEmbeddings(reply []byte, rows int) ([][]byte, int, error) { return nil, -1, nil }

// AppendEmbeddings appends one caller's reply.
func AppendEmbeddings(dst []byte, model string, rows [][]byte, promptTokens int, base64 bool) ([]byte, error) {
	return dst, nil
}
