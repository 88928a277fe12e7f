package loadgen

import (
	"runtime"
	"runtime/debug"
	"time"
)

// ThisMachine describes the machine that this program runs on.
func ThisMachine() Machine {
	kernel, model := machine()
	return Machine{
		OS: runtime.GOOS, Arch: runtime.GOARCH, Kernel: kernel, Model: model,
		CPUs: runtime.NumCPU(), Procs: runtime.GOMAXPROCS(0), Go: runtime.Version(),
	}
}

// host is this machine and what the run used of it.
func host(used, elapsed time.Duration) Host {
	out := Host{Machine: ThisMachine(), CPU: used.Seconds()}
	if elapsed > 0 {
		out.CPUShare = used.Seconds() / (elapsed.Seconds() * float64(out.Procs))
	}
	return out
}

// tool is this build.
func tool() Tool {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return Tool{}
	}
	out := Tool{Version: info.Main.Version}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			out.Commit = s.Value
		case "vcs.modified":
			out.Modified = s.Value == "true"
		}
	}
	return out
}

// ThisTool describes this build.
func ThisTool() Tool { return tool() }
