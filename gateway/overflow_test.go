package gateway

import (
	"context"
	"testing"

	"aloft/backends"
)

// A request may leave the house only where its model has a way out and its key
// has opted in; without keys the operator's word is enough.
func TestOverflowWantsTheKeysLeave(t *testing.T) {
	for name, tt := range map[string]struct {
		model, keys, leave, want bool
	}{
		"no keys":              {model: true, want: true},
		"key opted in":         {model: true, keys: true, leave: true, want: true},
		"key did not":          {model: true, keys: true},
		"model has no way out": {keys: true, leave: true},
	} {
		var got backends.Placement
		e := start(t, func(_ context.Context, req *backends.Request) (*backends.Reply, error) {
			got = req.Place
			return whole200(200, "{}"), nil
		}, func(_ *Options, d *Deps) {
			models := testModels()
			models[0].Overflow = tt.model
			d.Catalog = models
			if tt.keys {
				d.Keys = newRing(t, "k1", &Grant{Tenant: "red", Overflow: tt.leave})
			}
		})
		if resp, body := e.post(t, "/v1/chat/completions", chatBody, "Authorization", "Bearer k1"); resp.StatusCode != 200 || got.Overflow != tt.want {
			t.Errorf("%s: %d %s, overflow %v, want %v", name, resp.StatusCode, body, got.Overflow, tt.want)
		}
	}
}
