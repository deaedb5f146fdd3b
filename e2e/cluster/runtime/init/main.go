// Command init waits, reaps what is left to it, and ends on SIGTERM or SIGINT.
//
// It is process 1 of the node's namespaces, where nothing but its death by SIGKILL counts: the kernel then ends all
// other processes there. It is also the program of the pause image, process 1 of every pod.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGCHLD, syscall.SIGINT, syscall.SIGTERM)
	for received := range signals {
		if received != syscall.SIGCHLD {
			return
		}
		// Signals that come together are one, so there may be several to reap.
		for {
			pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
			if err != syscall.EINTR && pid <= 0 {
				break
			}
		}
	}
}
