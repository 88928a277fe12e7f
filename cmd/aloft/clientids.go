package main

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
)

// full finds the id that a short one, as listings show it (job-7818), stands
// for. Anything else is returned as it is.
func (c *client) full(ctx context.Context, id string) (string, error) {
	kind, end, ok := strings.Cut(id, "-")
	if !ok || len(end) != 4 || strings.Contains(kind, "_") {
		return id, nil
	}
	path := "/aloft/v1/jobs?limit=100"
	if kind == "batch" {
		path = "/v1/batches?limit=100"
	}
	var list struct{ Data []named }
	if err := c.call(ctx, http.MethodGet, path, nil, &list); err != nil {
		return "", err
	}
	var found []string
	for _, o := range list.Data {
		if short(o.ID) == id {
			found = append(found, o.ID)
		}
	}
	switch len(found) {
	case 0:
		return id, nil // the server says what it makes of it
	case 1:
		return found[0], nil
	}
	return "", fmt.Errorf("%s is short for each of %s: give one in full", id, strings.Join(found, ", "))
}

// named is what a job or batch can be called by.
type named struct{ ID, Name string }

// wholeID is an id that needs no looking up.
var wholeID = regexp.MustCompile(`^[a-z]+[_-][0-9a-f]{32}$`)

// searched bounds how far back a job is looked for by less than its id.
const searched = 10_000

// findJob returns the id of a job given by its id, the beginning of it, its short
// form, its name, or latest.
func (c *client) findJob(ctx context.Context, ref string) (string, error) {
	return c.find(ctx, "job", "/aloft/v1/jobs?limit=1000", ref)
}

// findBatch is findJob for batches, which have no names.
func (c *client) findBatch(ctx context.Context, ref string) (string, error) {
	return c.find(ctx, "batch", "/v1/batches?limit=100", ref)
}

func (c *client) find(ctx context.Context, what, path, ref string) (string, error) {
	if wholeID.MatchString(ref) {
		return ref, nil
	}
	var called, begin []string
	seen, after := 0, ""
	for more := true; more && seen < searched; {
		var page struct {
			Data []named
			More bool   `json:"has_more"`
			Last string `json:"last_id"`
		}
		if err := c.call(ctx, http.MethodGet, path+after, nil, &page); err != nil {
			return "", err
		}
		for _, o := range page.Data {
			switch {
			case ref == "latest" || o.ID == ref:
				return o.ID, nil
			case o.Name == ref:
				called = append(called, o.ID)
			case strings.HasPrefix(o.ID, ref) || short(o.ID) == ref:
				begin = append(begin, o.ID)
			}
		}
		seen += len(page.Data)
		more, after = page.More, "&after="+url.QueryEscape(page.Last)
	}
	if len(called) > 0 {
		begin = called // a name counts more than what an id happens to begin with
	}
	switch n := len(begin); {
	case n == 1:
		return begin[0], nil
	case n > 1:
		const shown = 3
		return "", fmt.Errorf("%s can be each of %d: %s: give one in full", ref, n, strings.Join(begin[:min(n, shown)], ", ")+dots(n > shown))
	case seen >= searched:
		return "", fmt.Errorf("there is no %s %q among the newest %d: give its whole id", what, ref, seen)
	}
	return "", fmt.Errorf("there is no %s %q", what, ref)
}

func dots(more bool) string {
	if more {
		return " …"
	}
	return ""
}
