package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// ls prints the names in folders, and the names of files.
func ls(words []string) error {
	if len(words) == 0 {
		words = []string{"."}
	}
	for _, path := range words {
		about, err := os.Stat(path)
		if err != nil {
			return err
		}
		if !about.IsDir() {
			fmt.Println(path)
			continue
		}
		entries, err := os.ReadDir(path)
		if err != nil {
			return err
		}
		for _, entry := range entries {
			if !strings.HasPrefix(entry.Name(), ".") {
				fmt.Println(entry.Name())
			}
		}
	}
	return nil
}

func mkdir(words []string) error {
	given, words, err := flags(words, "p")
	if err != nil {
		return err
	}
	for _, path := range words {
		if given != "" {
			err = os.MkdirAll(path, 0o777)
		} else {
			err = os.Mkdir(path, 0o777)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func rm(words []string) error {
	given, words, err := flags(words, "fr")
	if err != nil {
		return err
	}
	remove := os.Remove
	if strings.Contains(given, "r") {
		remove = os.RemoveAll
	}
	for _, path := range words {
		err := remove(path)
		if errors.Is(err, os.ErrNotExist) && strings.Contains(given, "f") {
			continue
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// stat prints the size of files: -c %s.
func stat(words []string) error {
	if len(words) < 2 || words[0] != "-c" || words[1] != "%s" {
		return errors.New("only -c %s is known")
	}
	for _, path := range words[2:] {
		found, err := os.Stat(path)
		if err != nil {
			return err
		}
		fmt.Println(found.Size())
	}
	return nil
}

func touch(words []string) error {
	for _, path := range words {
		file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o666)
		if err != nil {
			return err
		}
		file.Close()
		now := time.Now()
		if err := os.Chtimes(path, now, now); err != nil {
			return err
		}
	}
	return nil
}

// truncate sets the size of a file: -s 8G FILE.
func truncate(words []string) error {
	if len(words) != 3 || words[0] != "-s" {
		return errors.New("usage: truncate -s SIZE FILE")
	}
	size, err := bytes(words[1])
	if err != nil {
		return err
	}
	file, err := os.OpenFile(words[2], os.O_CREATE|os.O_WRONLY, 0o666)
	if err != nil {
		return err
	}
	defer file.Close()
	return file.Truncate(size)
}

// dd copies blocks. It tells standard error how many, also if it fails.
func dd(words []string) error {
	operands := map[string]string{"bs": "512", "seek": "0", "count": "-1", "conv": ""}
	for _, word := range words {
		name, value, _ := strings.Cut(word, "=")
		if _, known := operands[name]; !known && name != "if" && name != "of" {
			return fmt.Errorf("unknown operand %s", word)
		}
		operands[name] = value
	}
	size, err := bytes(operands["bs"])
	if err != nil {
		return err
	}
	seek, err := strconv.ParseInt(operands["seek"], 10, 64)
	if err != nil {
		return err
	}
	count, err := strconv.ParseInt(operands["count"], 10, 64)
	if err != nil {
		return err
	}
	source, target := os.Stdin, os.Stdout
	if path := operands["if"]; path != "" {
		if source, err = os.Open(path); err != nil {
			return err
		}
	}
	if path := operands["of"]; path != "" {
		how := os.O_CREATE | os.O_WRONLY
		if operands["conv"] != "notrunc" {
			how |= os.O_TRUNC
		}
		if target, err = os.OpenFile(path, how, 0o666); err != nil {
			return err
		}
	}
	if seek > 0 {
		if _, err := target.Seek(seek*size, io.SeekStart); err != nil {
			return err
		}
	}
	return copyBlocks(source, target, make([]byte, size), count)
}

func copyBlocks(source io.Reader, target io.Writer, block []byte, count int64) error {
	var in, out int64
	defer func() { fmt.Fprintf(os.Stderr, "%d+0 records in\n%d+0 records out\n", in, out) }()
	for ; count < 0 || in < count; out++ {
		read, err := io.ReadFull(source, block)
		if read == 0 {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		in++
		if _, err := target.Write(block[:read]); err != nil {
			return err
		}
	}
	return nil
}

// bytes is the number in text, which may end with a unit: 8G.
func bytes(text string) (int64, error) {
	shift := 0
	for unit, bits := range map[string]int{"K": 10, "k": 10, "M": 20, "G": 30} {
		if strings.HasSuffix(text, unit) {
			text, shift = strings.TrimSuffix(text, unit), bits
			break
		}
	}
	number, err := strconv.ParseInt(text, 10, 64)
	return number << shift, err
}

// env prints the environment, or starts a program: env NAME=VALUE PROGRAM.
func env(words []string) error {
	for len(words) > 0 && strings.Contains(words[0], "=") {
		name, value, _ := strings.Cut(words[0], "=")
		os.Setenv(name, value)
		words = words[1:]
	}
	if len(words) > 0 {
		return replace(words)
	}
	all := os.Environ()
	sort.Strings(all)
	for _, line := range all {
		fmt.Println(line)
	}
	return nil
}

// changeRoot starts a program that sees a folder as its root: chroot FOLDER PROGRAM.
func changeRoot(words []string) error {
	if len(words) < 2 {
		return errors.New("usage: chroot FOLDER PROGRAM")
	}
	if err := syscall.Chroot(words[0]); err != nil {
		return &os.PathError{Op: "chroot", Path: words[0], Err: err}
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	return replace(words[1:])
}
