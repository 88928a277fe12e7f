package arrivals

import "errors"

// keyedError is a mistake below a key of a profile.
type keyedError struct {
	key string
	err error
}

func (e *keyedError) Error() string { return e.err.Error() }
func (e *keyedError) Unwrap() error { return e.err }

// Keyed notes below which key of a profile a mistake was found, as "phases[2]".
// The message stays as it is.
func Keyed(key string, err error) error {
	if err == nil {
		return nil
	}
	return &keyedError{key, err}
}

// Keys are the keys that lead to a mistake, outermost first, and the innermost
// message, which by custom begins with the key that it is about.
func Keys(err error) (keys []string, message string) {
	inner := err
	for e := err; e != nil; e = errors.Unwrap(e) {
		if k, ok := e.(*keyedError); ok {
			keys = append(keys, k.key)
		}
		inner = e
	}
	return keys, inner.Error()
}
