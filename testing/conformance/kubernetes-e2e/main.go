// Kubernetes' own end-to-end tests of scheduling and of its controllers of apps, as one program.
//
// It has the flags of Kubernetes' e2e.test. The exit status is 0 if no test failed.
package main

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"k8s.io/kubernetes/test/e2e"
	"k8s.io/kubernetes/test/e2e/framework"
	"k8s.io/kubernetes/test/e2e/framework/config"

	// the tests
	_ "k8s.io/kubernetes/test/e2e/apps"
	_ "k8s.io/kubernetes/test/e2e/scheduling"

	// after a failed test, print pods, events and nodes; after each, ask whether all nodes are ready
	_ "k8s.io/kubernetes/test/e2e/framework/debug/init"
	_ "k8s.io/kubernetes/test/e2e/framework/node/init"
)

func main() {
	config.CopyFlags(config.Flags, flag.CommandLine)
	framework.RegisterCommonFlags(flag.CommandLine)
	framework.RegisterClusterFlags(flag.CommandLine)
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "unknown arguments: %q\n", flag.Args())
		os.Exit(2)
	}
	framework.AfterReadingAllFlags(&framework.TestContext)
	outcome := new(testing.T)
	e2e.RunE2ETests(outcome)
	if outcome.Failed() {
		os.Exit(1)
	}
}
