package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func cat(words []string) error {
	return input(words, func(file io.Reader) error {
		_, err := io.Copy(os.Stdout, file)
		return err
	})
}

// head prints the first bytes, -c NUMBER, or lines, -n NUMBER.
func head(words []string) error {
	lines, limit := true, int64(10)
	if len(words) > 1 && (words[0] == "-c" || words[0] == "-n") {
		number, err := strconv.ParseInt(words[1], 10, 64)
		if err != nil {
			return err
		}
		lines, limit, words = words[0] == "-n", number, words[2:]
	}
	return input(words, func(file io.Reader) error {
		if !lines {
			_, err := io.Copy(os.Stdout, io.LimitReader(file, limit))
			return err
		}
		scanner := bufio.NewScanner(file)
		for ; limit > 0 && scanner.Scan(); limit-- {
			fmt.Println(scanner.Text())
		}
		return scanner.Err()
	})
}

// wc prints the number of bytes, -c, or lines, -l.
func wc(words []string) error {
	given, words, err := flags(words, "cl")
	if err != nil {
		return err
	}
	if len(given) != 1 {
		return errors.New("usage: wc -c|-l [FILE]")
	}
	return input(words, func(file io.Reader) error {
		text, err := io.ReadAll(file)
		if given == "c" {
			fmt.Println(len(text))
		} else {
			fmt.Println(strings.Count(string(text), "\n"))
		}
		return err
	})
}

// grep prints lines that match a regular expression, or with -o the parts that do. The status is 1 if there is none.
func grep(words []string) error {
	given, words, err := flags(words, "oEq")
	if err != nil {
		return err
	}
	if len(words) == 0 {
		return errors.New("no expression")
	}
	wanted, err := regexp.Compile(words[0])
	if err != nil {
		return err
	}
	found := false
	err = input(words[1:], func(file io.Reader) error {
		scanner := bufio.NewScanner(file)
		for scanner.Scan() {
			parts := wanted.FindAllString(scanner.Text(), -1)
			found = found || len(parts) > 0
			if len(parts) > 0 && !strings.Contains(given, "o") {
				parts = []string{scanner.Text()}
			}
			for _, part := range parts {
				if !strings.Contains(given, "q") {
					fmt.Println(part)
				}
			}
		}
		return scanner.Err()
	})
	if err == nil && !found {
		return status(1)
	}
	return err
}

// tr deletes bytes that are not in a set: tr -cd ' -~\n'.
func tr(words []string) error {
	given, words, err := flags(words, "cd")
	if err != nil {
		return err
	}
	if given != "cd" || len(words) != 1 {
		return errors.New("usage: tr -cd SET")
	}
	set, err := regexp.Compile("[^" + words[0] + "]")
	if err != nil {
		return err
	}
	text, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	var kept []byte
	for _, one := range text { // byte by byte: it is no UTF-8
		if one < 0x80 && !set.Match([]byte{one}) {
			kept = append(kept, one)
		}
	}
	_, err = os.Stdout.Write(kept)
	return err
}

// seq prints the numbers from the first to the last: seq [FIRST] LAST.
func seq(words []string) error {
	first := 1
	if len(words) == 2 {
		number, err := strconv.Atoi(words[0])
		if err != nil {
			return err
		}
		first, words = number, words[1:]
	}
	if len(words) != 1 {
		return errors.New("usage: seq [FIRST] LAST")
	}
	last, err := strconv.Atoi(words[0])
	for ; err == nil && first <= last; first++ {
		fmt.Println(first)
	}
	return err
}

// sleep waits for a number of seconds, or for ever: sleep inf.
func sleep(words []string) error {
	if len(words) != 1 {
		return errors.New("usage: sleep SECONDS")
	}
	if strings.HasPrefix(words[0], "inf") {
		words[0] = "1e9"
	}
	seconds, err := strconv.ParseFloat(words[0], 64)
	if err != nil {
		return err
	}
	time.Sleep(time.Duration(seconds * float64(time.Second)))
	return nil
}

// replace becomes another program.
func replace(words []string) error {
	path, err := exec.LookPath(words[0])
	if err != nil {
		return err
	}
	return syscall.Exec(path, words, os.Environ())
}
