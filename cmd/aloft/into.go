package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// into writes to a file, to standard output ("-"), or nowhere ("").
func into(path string, stdout io.Writer, write func(io.Writer) error) error {
	switch path {
	case "":
		return nil
	case "-":
		return write(stdout)
	}
	f, to, err := beside(path)
	if err != nil {
		return err
	}
	err = errors.Join(write(f), f.Close())
	if f.Name() == to {
		return err
	}
	if err == nil {
		err = os.Rename(f.Name(), to)
	}
	if err != nil {
		os.Remove(f.Name()) // what was there stays
	}
	return err
}

// beside opens a file that is to take the place of path once it is whole, so that
// a full disk or a second Ctrl-C leaves no half of one, nor costs what was there.
// A device or a pipe is opened itself.
func beside(path string) (f *os.File, to string, err error) {
	to, mode := path, os.FileMode(0o666)
	if real, err := filepath.EvalSymlinks(path); err == nil {
		to = real
	}
	if at, err := os.Stat(to); err == nil {
		if !at.Mode().IsRegular() {
			f, err = os.OpenFile(to, os.O_WRONLY, 0)
			return f, to, err
		}
		mode = at.Mode().Perm()
	}
	f, err = os.OpenFile(fmt.Sprintf("%s.%d.part", to, os.Getpid()), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode)
	return f, to, err
}

// keepable is an error when files that a command is to write, perhaps after hours,
// cannot be, or when one would be lost under another or under what is read.
func keepable(read []string, files ...string) error {
	at := map[string]string{}
	for _, name := range read {
		if name != "" {
			at[place(name)] = name
		}
	}
	for _, name := range files {
		if name == "" {
			continue
		}
		if other, taken := at[place(name)]; taken {
			return fmt.Errorf("%s and %s are the same file: one would be lost", other, name)
		}
		if info, err := os.Stat(name); name == "-" || err == nil && !info.Mode().IsRegular() && !info.IsDir() {
			if name == "-" {
				at[name] = name
			}
			continue // a device takes as much as is written
		}
		f, to, err := beside(name)
		if err != nil {
			return err
		}
		f.Close()
		if f.Name() != to {
			os.Remove(f.Name())
		}
		at[place(name)] = name
	}
	return nil
}

// place is where a file is, by one name however it is written.
func place(path string) string {
	if path == "-" {
		return path
	}
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	} else if dir, err := filepath.EvalSymlinks(filepath.Dir(path)); err == nil {
		path = filepath.Join(dir, filepath.Base(path))
	}
	if whole, err := filepath.Abs(path); err == nil {
		path = whole
	}
	return path
}
