package gpu

import "fmt"

// appXIDs come from a program's own fault and say nothing about the device.
var appXIDs = map[int]bool{13: true, 31: true, 43: true, 45: true, 68: true, 109: true}

// xidText names the errors that do (NVIDIA's XID catalogue).
var xidText = map[int]string{
	48: "double bit ECC error", 63: "row remapping pending", 64: "row remapping failed", 74: "NVLink error",
	79: "GPU fell off the bus", 94: "contained memory error", 95: "uncontained memory error",
	119: "GSP timeout", 120: "GSP error",
}

// HealthAfterXID is a device's health after the driver reported an XID. What is
// not known to be an application's fault counts as the device's.
func HealthAfterXID(xid int) Health {
	if appXIDs[xid] {
		return Health{OK: true}
	}
	text, ok := xidText[xid]
	if !ok {
		text = "unknown error"
	}
	return Health{Reason: fmt.Sprintf("XID %d: %s", xid, text)}
}
