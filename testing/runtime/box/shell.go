package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"mvdan.cc/sh/v3/interp"
	"mvdan.cc/sh/v3/syntax"
)

// sh runs the script after -c, or the one in a file, or the one on standard input.
func sh(words []string) error {
	given, words, err := flags(words, "ceux")
	if err != nil {
		return err
	}
	script, name := os.Stdin, "sh"
	var text string
	switch {
	case strings.Contains(given, "c"):
		if len(words) == 0 {
			return errors.New("-c needs a script")
		}
		text, words = words[0], words[1:]
		if len(words) > 0 {
			words = words[1:] // the name of the script
		}
	case len(words) > 0:
		read, err := os.ReadFile(words[0])
		if err != nil {
			return err
		}
		text, name, words = string(read), words[0], words[1:]
	}
	parser := syntax.NewParser(syntax.Variant(syntax.LangPOSIX))
	var file *syntax.File
	if text == "" && !strings.Contains(given, "c") && name == "sh" {
		file, err = parser.Parse(script, name)
	} else {
		file, err = parser.Parse(strings.NewReader(text), name)
	}
	if err != nil {
		return err
	}
	var params []string
	for _, letter := range strings.ReplaceAll(given, "c", "") {
		params = append(params, fmt.Sprintf("-%c", letter))
	}
	params = append(append(params, "--"), words...)
	runner, err := interp.New(interp.StdIO(os.Stdin, os.Stdout, os.Stderr), interp.Params(params...))
	if err != nil {
		return err
	}
	err = runner.Run(context.Background(), file)
	var ended interp.ExitStatus
	if errors.As(err, &ended) {
		return status(ended)
	}
	return err
}
