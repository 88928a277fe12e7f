package main

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"
)

// A followed log goes on at the byte it had, over connections that break and a
// server that is away; one that is not followed says that it broke off.
func TestFollowedLogComesBack(t *testing.T) {
	const before, text = 5000, "one\ntwo\nthree\nfour\n"
	asked := 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked++
		from, _ := strconv.Atoi(r.URL.Query().Get("offset"))
		if from == 0 {
			from = before // what is kept begins here
		}
		if (asked == 1) != (r.URL.Query().Get("tail") == "9") {
			t.Errorf("request %d asks %s", asked, r.URL.RawQuery)
		}
		if asked == 2 {
			http.Error(w, "it starts", http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("X-Aloft-Log-Offset", fmt.Sprint(from))
		rest := text[from-before:]
		if asked > 3 {
			fmt.Fprint(w, rest)
			return
		}
		fmt.Fprint(w, rest[:6])
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}))
	defer s.Close()
	var got strings.Builder
	c := &client{base: s.URL}
	if err := c.log(t.Context(), "/logs", url.Values{"follow": {"true"}, "tail": {"9"}}, &got); err != nil || got.String() != text || asked != 4 {
		t.Errorf("after %d requests: %q, %v; want %q after 4", asked, got.String(), err, text)
	}
	asked = 0
	if err := c.log(t.Context(), "/logs", url.Values{"tail": {"9"}}, &got); err == nil || asked != 1 {
		t.Errorf("not followed: %v after %d requests, want an error after 1", err, asked)
	}
	gone := &client{base: "http://127.0.0.1:1"}
	if err := gone.log(t.Context(), "/logs", url.Values{"follow": {"true"}}, &got); err == nil || errors.Is(err, t.Context().Err()) {
		t.Errorf("a server that was never there: %v", err)
	}
}
