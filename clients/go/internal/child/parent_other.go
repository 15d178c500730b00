//go:build !linux

package child

import "os/exec"

// dieWithParent does nothing: only Linux can do this.
func dieWithParent(*exec.Cmd) {}
