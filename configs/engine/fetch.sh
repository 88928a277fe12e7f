#!/bin/sh
# Fetches llama.cpp's shared libraries (package-lock.json pins version and hash)
# into a cache folder and prints the folder that holds libllama.so.
#
#   configs/engine/fetch.sh [FOLDER]     default: .engine in the repository root
#
# Nothing is fetched when the folder already holds what the lock asks for.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
cache=${1:-$here/../../.engine}
mkdir -p "$cache"
cache=$(CDPATH='' cd -- "$cache" && pwd)
# The same path is known to backends/llama.LibraryFolder.
lib=$cache/node_modules/@node-llama-cpp/linux-x64/bins/linux-x64

if [ ! -e "$lib/libllama.so" ] || ! cmp -s "$here/package-lock.json" "$cache/package-lock.json"; then
	if ! command -v npm >/dev/null 2>&1; then
		echo "fetch.sh: npm not found: install Node.js 20 or newer, or point ALOFT_ENGINE_LIB at a folder with llama.cpp v0.5.0's shared libraries" >&2
		exit 1
	fi
	echo '*' >"$cache/.gitignore" # the cache is nobody's source
	cp "$here/package.json" "$cache/package.json"
	# The lock is copied last, so that an interrupted run fetches again.
	rm -f "$cache/package-lock.json"
	cp "$here/package-lock.json" "$cache/npm-shrinkwrap.json"
	(cd "$cache" && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error >&2)
	rm -f "$cache/npm-shrinkwrap.json"
	# yzma looks for plain names; the package has versioned ones.
	for name in libllama libggml; do
		versioned=$(cd "$lib" && ls "$name".v*.so)
		ln -sf "$versioned" "$lib/$name.so"
	done
	cp "$here/package-lock.json" "$cache/package-lock.json"
fi
echo "$lib"
