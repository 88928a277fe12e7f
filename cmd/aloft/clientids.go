package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
)

// full finds the whole id of a job or batch whose short form, as listings show it
// (job-7818), or beginning is given. What is no such thing, and what nobody knows, is
// returned as it is.
func (c *client) full(ctx context.Context, id string) (string, error) {
	kind := strings.TrimRight(brief.FindString(id), "_-")
	find := map[string]func(context.Context, string) (string, error){"job": c.findJob, "batch": c.findBatch}[kind]
	if find == nil {
		return id, nil
	}
	whole, err := find(ctx, id)
	if errors.Is(err, errNoSuch) {
		return id, nil // the server says what it makes of it
	}
	return whole, err
}

// brief is how what may be less than the id of a job or batch begins.
var brief = regexp.MustCompile(`^[a-z]+[_-]`)

// errNoSuch is in what find says where nothing is called so.
var errNoSuch = errors.New("there is no")

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
		return "", fmt.Errorf("%w %s %q among the newest %d: give its whole id", errNoSuch, what, ref, seen)
	}
	return "", fmt.Errorf("%w %s %q", errNoSuch, what, ref)
}

func dots(more bool) string {
	if more {
		return " …"
	}
	return ""
}
