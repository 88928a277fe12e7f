package main

// Help is what --help shows below the flags.
func (*loadCmd) Help() string {
	return `Examples:
  aloft load --kind chat --stream --model aloft-lm --rate 5 --for 30s
  aloft load profile.yaml --json run.json --html run.html --assert 'attainment>=0.99'
  aloft load search profile.yaml --slo 'ttft_p99<800ms,tpot_p99<50ms'
  aloft load compare before.json after.json

Exit codes:
  0  done, also when a run was ended early and nothing is demanded of it
  1  bad input, or something could not be done, such as to write a file
  2  the run does not count: the generator did not send as planned
  3  a demand (--assert) did not hold, every request failed, no rate is known to
     hold, a figure of the self-test is wrong, or there was nothing to compare`
}

// Help shows examples of a run.
func (*loadRunCmd) Help() string {
	return `Examples:
  aloft load --kind embeddings --rate 50 --target 200ms
  aloft load profile.yaml --metrics :9100 --lines requests.jsonl
  aloft load profile.yaml --assert 'attainment{tenant=a}>=0.99,ttft_p99{class=interactive}<800ms'`
}

// Help shows examples of a search.
func (*loadSearchCmd) Help() string {
	return `Examples:
  aloft load search profile.yaml --slo 'ttft_p99<800ms,tpot_p99<50ms' --attain 0.99
  aloft load search profile.yaml --from 5 --to 200 --window 60s --resolution 0.02 --html answer.html`
}

// Help shows an example of a sweep.
func (*loadSweepCmd) Help() string {
	return `Example:
  aloft load sweep profile.yaml --from 1 --to 100 --points 8 --csv curve.csv --html curve.html`
}

// Help shows an example of a plan.
func (*loadPlanCmd) Help() string {
	return `Example:
  aloft load plan profile.yaml -o plan`
}

// Help shows an example of a comparison.
func (*loadCompareCmd) Help() string {
	return `Example:
  aloft load compare before.json after.json --html compare.html`
}
