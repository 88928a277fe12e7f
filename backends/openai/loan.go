package openai

import "sync"

// loans are the buffers that streams take while their engines are ahead of them.
var loans = sync.Pool{New: func() any { return new([busy]byte) }}
