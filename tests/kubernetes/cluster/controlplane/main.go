// Command controlplane runs one component of the Kubernetes control plane, named by its first argument:
// kube-apiserver, kube-controller-manager or kube-scheduler. One program with all three links and loads in a third of
// the time that three programs take.
package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // metrics of client-go
	_ "k8s.io/component-base/metrics/prometheus/version"  // metric of the build's version
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

func main() {
	components := map[string]func() *cobra.Command{
		"kube-apiserver":          apiserver.NewAPIServerCommand,
		"kube-controller-manager": controllermanager.NewControllerManagerCommand,
		"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
	}
	if len(os.Args) < 2 || components[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: controlplane kube-apiserver|kube-controller-manager|kube-scheduler [flags]")
		os.Exit(2)
	}
	command := components[os.Args[1]]()
	os.Args = os.Args[1:] // cobra reads the flags from there
	os.Exit(cli.Run(command))
}
