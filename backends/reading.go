package backends

// Reading is what an engine says of itself at one moment. It is a second old
// when it is used, and no part of a decision that our own counts can make.
type Reading struct {
	Running, Waiting int     // sequences, or calls, that it works on and that wait inside it
	KVTokens         int     // tokens that its KV cache holds; 0 = not said
	KVBlock          int     // tokens of a block of it; 0 = not said
	KVUsage          float64 // share of it that is taken, 0 to 1; 0 where it is not said
}
