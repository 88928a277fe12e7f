package batcher

// Reason says why a call was dispatched when it was.
type Reason uint8

// The reasons.
const (
	Idle     Reason = iota // a replica was free and waiting buys nothing
	Full                   // the rows or tokens of a whole call wait
	Knee                   // more rows would hardly make it cheaper per token
	Deadline               // the time that eta or the fixed delay allows is over
	Drain                  // the server is stopping
	Reasons                // how many there are
)

// String returns the word for metrics and logs.
func (r Reason) String() string {
	return [...]string{"idle", "full", "knee", "deadline", "drain", "none"}[min(r, Reasons)]
}

// Hold says why work waits: a free replica was left without it, or none was free.
// Of several reasons the last in order counts.
type Hold uint8

// The reasons to hold.
const (
	HoldPatience Hold = iota // eta: the call may still grow
	HoldDelay                // the fixed max_queue_delay
	HoldAvoid                // the only replica just failed this very work
	HoldOffline              // offline rows are at their limit
	HoldAdapter              // generation, from here on: no replica has the adapter
	HoldSlots                // every slot is taken
	HoldStale                // the engine's own figures are stale
	HoldEngine               // requests wait inside the engine
	HoldKV                   // its KV cache is promised
	HoldPrefill              // it has too many prompts to read first
	Holds                    // how many there are
)

// String returns the word for metrics and logs.
func (h Hold) String() string {
	return [...]string{"patience", "delay", "avoid", "offline_limit", "adapter", "slots", "stale", "engine_queue", "kv", "prefill", "none"}[min(h, Holds)]
}

// hold counts that work waits.
func (c *Core) hold(why Hold) { c.calls.Holds[why]++ }

// Drop says why a request was refused, or given up, without an engine's answer.
type Drop uint8

// The reasons to drop.
const (
	DropFull     Drop = iota // the queue was full
	DropLate                 // predicted to be late, refused on arrival
	DropHopeless             // too late whatever happens, while others wait
	DropEarly                // given up so that the calls to come serve more
	DropTimeout              // waited for the longest time
	DropDeadline             // its own deadline passed
	DropReplica              // no replica may run it
	DropDrain                // the server is stopping
	Drops                    // how many there are
)

// String returns the word for metrics and logs.
func (d Drop) String() string {
	return [...]string{"queue_full", "predicted_late", "too_late", "early_drop", "queue_timeout", "deadline", "no_replica", "drain", "none"}[min(d, Drops)]
}
