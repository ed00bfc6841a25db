package engine

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

const (
	passwordBytes    = 24   // random bytes of a generated password
	minPasswordChars = 16   // of a password that somebody wrote into the file
	maxPasswordFile  = 1024 // bytes
)

func passwordFile(folder, role string) string { return filepath.Join(folder, role+".password") }

// ensurePasswords returns the password of each role; a file that is not there yet is created with a random one.
func ensurePasswords(folder string) (map[string]string, error) {
	secrets := make(map[string]string, 2)
	for _, role := range []string{RoleWriter, RoleReader} {
		path := passwordFile(folder, role)
		secret, err := readPassword(path)
		if errors.Is(err, fs.ErrNotExist) {
			if err = createPassword(path); err == nil {
				secret, err = readPassword(path)
			}
		}
		if err != nil {
			return nil, err
		}
		secrets[role] = secret
	}
	return secrets, nil
}

// createPassword writes a new random password so that no other process ever sees half a file.
func createPassword(path string) error {
	raw := make([]byte, passwordBytes)
	rand.Read(raw)
	f, err := os.CreateTemp(filepath.Dir(path), ".password-*") // mode 0600
	if err != nil {
		return fmt.Errorf("create password file: %w", err)
	}
	defer os.Remove(f.Name())
	_, err = f.WriteString(base64.RawURLEncoding.EncodeToString(raw) + "\n")
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("write password file: %w", err)
	}
	// Link fails when another start was faster; then that one's password holds.
	if err := os.Link(f.Name(), path); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("place password file: %w", err)
	}
	return nil
}

// ReadPassword returns the password in the file at path, and refuses a file that others could read or that another user owns.
func ReadPassword(path string) (string, error) { return readPassword(path) }

func readPassword(path string) (string, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return "", fmt.Errorf("open password file: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", fmt.Errorf("examine password file: %w", err)
	}
	if !info.Mode().IsRegular() {
		return "", fmt.Errorf("%w: %s is not a regular file", ErrPasswordFile, path)
	}
	if open := info.Mode().Perm() & 0o077; open != 0 {
		return "", fmt.Errorf("%w: %s has mode %04o, so other users can use it\nhint: chmod 600 %s, and delete the file first if the password may have been read: a new one is made at the next start",
			ErrPasswordFile, path, info.Mode().Perm(), path)
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok && int(stat.Uid) != os.Geteuid() && os.Geteuid() != 0 {
		return "", fmt.Errorf("%w: %s belongs to user id %d, this process runs as %d", ErrPasswordFile, path, stat.Uid, os.Geteuid())
	}
	content, err := io.ReadAll(io.LimitReader(f, maxPasswordFile+1))
	if err != nil {
		return "", fmt.Errorf("read password file: %w", err)
	}
	secret := strings.TrimRight(string(content), "\r\n")
	if len(content) > maxPasswordFile || len(secret) < minPasswordChars || strings.ContainsFunc(secret, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
		return "", fmt.Errorf("%w: %s must hold one line of at least %d characters without spaces\nhint: delete the file, a new one is made at the next start",
			ErrPasswordFile, path, minPasswordChars)
	}
	return secret, nil
}
