package engine

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// LibraryVariable is the environment variable that names libchdb.so.
const LibraryVariable = "LOWTIDE_CHDB_LIBRARY"

// npmLibrary is where `npm ci` puts the library, below the folder of this package.
var npmLibrary = filepath.Join("npm", "node_modules", "@chdb", "lib-linux-x64-gnu", "libchdb.so")

// FindLibrary returns the absolute path of libchdb.so: explicit if it is not empty, else the file that LOWTIDE_CHDB_LIBRARY
// names, else the first that exists beside the executable, below the working directory, and in the system folders. A path
// that was asked for by name and does not exist is an error, never a reason to look elsewhere; errors are ErrLibraryMissing.
func FindLibrary(explicit string) (string, error) {
	executable, _ := os.Executable()
	working, _ := os.Getwd()
	return findLibrary(explicit, os.Getenv(LibraryVariable), executable, working)
}

func findLibrary(explicit, variable, executable, working string) (string, error) {
	if explicit != "" {
		return namedLibrary(explicit, "the option")
	}
	if variable != "" {
		return namedLibrary(variable, LibraryVariable)
	}
	var places []string
	if executable != "" {
		if real, err := filepath.EvalSymlinks(executable); err == nil {
			executable = real
		}
		places = append(places, libraryBelow(filepath.Dir(executable))...)
	}
	if working != "" {
		places = append(places, libraryBelow(working)...)
	}
	places = append(places, "/usr/local/lib/libchdb.so", "/usr/lib/lowtide/libchdb.so")
	for _, place := range places {
		if info, err := os.Stat(place); err == nil && info.Mode().IsRegular() {
			return filepath.Abs(place)
		}
	}
	return "", fmt.Errorf("%w: looked at %s\nhint: run `make engine`, or name the file with --library or %s",
		ErrLibraryMissing, strings.Join(places, ", "), LibraryVariable)
}

func libraryBelow(folder string) []string {
	return []string{
		filepath.Join(folder, "lib", "libchdb.so"),
		filepath.Join(folder, "sink", "engine", npmLibrary),
	}
}

func namedLibrary(path, source string) (string, error) {
	info, err := os.Stat(path)
	if err != nil || !info.Mode().IsRegular() {
		return "", fmt.Errorf("%w: %s names %q, which is not a file\nhint: run `make engine`, or correct the path", ErrLibraryMissing, source, path)
	}
	return filepath.Abs(path)
}
