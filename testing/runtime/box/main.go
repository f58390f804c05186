// box is all that the containers of end-to-end tests have: a shell and a few programs, in one static file.
//
// It is called by the name of a program, through a link such as /bin/cat, or as "box cat FILE". Without a name it prints
// all of them. The programs know the options that the tests use, and reject others.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sort"
	"strings"
)

// program is run with the words after its name. It returns what went wrong, which main prints.
type program func(words []string) error

// status is the exit status of a program that has nothing more to say.
type status int

func (s status) Error() string { return fmt.Sprintf("status %d", int(s)) }

var programs = map[string]program{
	"cat":      cat,
	"chroot":   changeRoot,
	"dd":       dd,
	"env":      env,
	"false":    func([]string) error { return status(1) },
	"grep":     grep,
	"head":     head,
	"loopback": loopback,
	"ls":       ls,
	"mkdir":    mkdir,
	"rm":       rm,
	"seq":      seq,
	"sh":       sh,
	"sleep":    sleep,
	"stat":     stat,
	"touch":    touch,
	"tr":       tr,
	"true":     func([]string) error { return nil },
	"truncate": truncate,
	"wc":       wc,
}

func main() {
	name, words := filepath.Base(os.Args[0]), os.Args[1:]
	if programs[name] == nil && len(words) > 0 {
		name, words = words[0], words[1:]
	}
	if name == "box" {
		fmt.Println(strings.Join(names(), "\n"))
		return
	}
	run := programs[name]
	if run == nil {
		fmt.Fprintf(os.Stderr, "box: no program %s; there are %s\n", name, strings.Join(names(), " "))
		os.Exit(127)
	}
	os.Exit(exitStatus(name, run(words)))
}

// exitStatus prints what went wrong, if anything did, and returns the status that says so.
func exitStatus(name string, err error) int {
	var said status
	switch {
	case err == nil:
		return 0
	case errors.As(err, &said):
		return int(said)
	}
	// as the usual programs print it: "No space left on device", without the operation
	var failed *os.PathError
	if errors.As(err, &failed) {
		fmt.Fprintf(os.Stderr, "%s: %s: %s\n", name, failed.Path, sentence(failed.Err))
	} else {
		fmt.Fprintf(os.Stderr, "%s: %s\n", name, sentence(err))
	}
	return 1
}

func sentence(err error) string {
	text := err.Error()
	return strings.ToUpper(text[:1]) + text[1:]
}

func names() []string {
	var all []string
	for name := range programs {
		all = append(all, name)
	}
	sort.Strings(all)
	return all
}

// flags takes the options in allowed from the front of words, such as "-oE", and returns them without their dashes.
func flags(words []string, allowed string) (given string, rest []string, err error) {
	for len(words) > 0 && len(words[0]) > 1 && words[0][0] == '-' {
		if words[0] == "--" {
			return given, words[1:], nil
		}
		for _, letter := range words[0][1:] {
			if !strings.ContainsRune(allowed, letter) {
				return "", nil, fmt.Errorf("unknown option -%c", letter)
			}
		}
		given += words[0][1:]
		words = words[1:]
	}
	return given, words, nil
}

// input opens each file of words in turn, or standard input if there is none.
func input(words []string, read func(io.Reader) error) error {
	if len(words) == 0 {
		return read(os.Stdin)
	}
	for _, path := range words {
		file, err := os.Open(path)
		if err != nil {
			return err
		}
		err = read(file)
		file.Close()
		if err != nil {
			return err
		}
	}
	return nil
}
