package gateway

import (
	"time"

	"aloft/backends/openai"
)

// Recorder writes down what requests come: when, of what kind and how large,
// never their text. It is switched by the admin API.
type Recorder interface {
	Recording() Recording
	// Record begins a recording, or ends the one that runs; it does nothing where
	// that is so already.
	Record(on bool) (Recording, error)
}

// Recording is the state of the recorder.
type Recording struct {
	On    bool
	File  string // of the recording that runs, or ran last; below the data folder
	Since time.Time
	Rows  int64 // written
	Lost  int64 // that the disk was too slow for
	Full  bool  // it ended because the file had reached its largest size
}

// RecordingObject is Recording as the admin API shows it.
type RecordingObject struct {
	Object string `json:"object"`
	On     bool   `json:"on"`
	File   string `json:"file,omitempty"`
	Since  *int64 `json:"since"` // Unix seconds; null = never
	Rows   int64  `json:"rows"`
	Lost   int64  `json:"lost"`
	Full   bool   `json:"full"`
}

// Object is r in the admin API's form.
func (r Recording) Object() RecordingObject {
	o := RecordingObject{Object: "recording", On: r.On, File: r.File, Rows: r.Rows, Lost: r.Lost, Full: r.Full}
	if !r.Since.IsZero() {
		at := r.Since.Unix()
		o.Since = &at
	}
	return o
}

func (s *Server) showRecording(x *exchange) { s.json(x, s.deps.Recorder.Recording().Object()) }

func (s *Server) setRecording(x *exchange) {
	var in struct {
		On *bool `json:"on"`
	}
	err := s.adminBody(x, &in)
	if err == nil && in.On == nil {
		err = invalid("on", openai.CodeMissing, "missing required parameter: 'on' (true or false)")
	}
	if err != nil {
		s.fail(x, err)
		return
	}
	r, err := s.deps.Recorder.Record(*in.On)
	if err != nil {
		s.fail(x, err)
		return
	}
	s.json(x, r.Object())
}
