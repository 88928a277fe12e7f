package main

import (
	"fmt"
	"strings"
	"time"

	"aloft/loadgen"
	"aloft/sim/study"
)

// studied shows how far a study is; for study.Options.OnProgress.
func studied(p *progress) func(study.Progress) {
	return func(s study.Progress) {
		p.draw(func(took time.Duration) reached {
			left := ""
			if s.Share > 0.01 { // before that it is guesswork
				left = ", " + clock(time.Duration(float64(took)*(1-s.Share)/s.Share)) + " left"
			}
			runs := fmt.Sprintf("%d of %d runs", s.Done, s.Runs)
			now := strings.Join(s.Now, "; ")
			return reached{share: s.Share, beside: fmt.Sprintf("%s%s  %s", runs, left, now),
				line: fmt.Sprintf("simulated %.0f %%, %s, %s%s: %s", 100*s.Share, runs, clock(took), left, loadgen.OneLine(now))}
		})
	}
}
