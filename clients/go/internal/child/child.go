// Package child starts the servers of the tests.
package child

import (
	"os/exec"
	"runtime"
)

// Start starts a process. On Linux the kernel kills it when this process ends, however it ends: a test that is killed runs
// no cleanup. The channel is closed when the process has ended.
func Start(command *exec.Cmd) (<-chan struct{}, error) {
	dieWithParent(command)
	started, ended := make(chan error), make(chan struct{})
	go func() {
		// To the kernel, the parent is the thread that starts the process. So this thread lives as long as the process.
		runtime.LockOSThread()
		err := command.Start()
		started <- err
		if err == nil {
			_ = command.Wait()
			close(ended)
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return ended, nil
}
