package openaihttp

import (
	"strconv"
	"strings"

	"aloft/backends"
)

// ours are the request fields that this package writes itself, and those that
// speak of a connection: no call may set them.
var ours = []string{
	"Accept", "Accept-Encoding", "Authorization", "Connection", "Content-Length", "Content-Type", "Expect", "Host",
	"Keep-Alive", "Proxy-Authorization", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "User-Agent", "X-Request-Id",
}

// maySet reports whether a call's field is sent. A damaged one is left out: it
// could begin a field, or a request, of its own.
func maySet(f backends.Field) bool {
	for _, name := range ours {
		if len(f.Name) == len(name) && strings.EqualFold(f.Name, name) {
			return false
		}
	}
	return validName(f.Name) && validValue(f.Value)
}

// fixedFields is the part of a request's head that is the same for every call.
func fixedFields(host, apiKey string) string {
	s := "Host: " + host + "\r\nUser-Agent: aloft\r\n"
	if apiKey != "" {
		s += "Authorization: Bearer " + apiKey + "\r\n"
	}
	return s
}

// appendRequest appends the head of a call.
func (c *Client) appendRequest(b []byte, call *backends.Call) []byte {
	b = append(b, "POST "...)
	b = append(b, c.prefix...)
	b = append(b, call.Path...)
	b = append(b, " HTTP/1.1\r\n"...)
	b = append(b, c.fixed...)
	kind := call.ContentType
	if kind == "" || !validValue(kind) {
		kind = "application/json"
	}
	b = appendField(b, "Content-Type", kind)
	if call.Stream {
		b = appendField(b, "Accept", "text/event-stream")
	}
	if call.ID != "" && validValue(call.ID) {
		b = appendField(b, "X-Request-Id", call.ID)
	}
	for _, f := range call.Header {
		if maySet(f) {
			b = appendField(b, f.Name, f.Value)
		}
	}
	b = append(b, "Content-Length: "...)
	b = strconv.AppendInt(b, int64(len(call.Body)), 10)
	return append(b, "\r\n\r\n"...)
}

func appendField(b []byte, name, value string) []byte {
	b = append(b, name...)
	b = append(b, ": "...)
	b = append(b, value...)
	return append(b, "\r\n"...)
}
