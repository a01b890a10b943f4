#!/bin/sh
# clone URL | push URL SIZE: a clone, or a clone and a push of a random file of SIZE bytes, by the git of the path.
set -eu
export HOME="${HOME:-/tmp}" GIT_CONFIG_NOSYSTEM=1 GIT_TERMINAL_PROMPT=0
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
cd "$directory"
git clone -q "$2" copy
if [ "$1" = push ]; then
    cd copy
    git config user.email tester@example.com
    # Random bytes; to press them would be most of the time.
    git config core.compression 0
    git config user.name tester
    head -c "$3" /dev/urandom >"file-$3"
    git add .
    git -c gc.auto=0 commit -qm "$3 bytes"
    git push -q origin HEAD:main
fi
echo "reached $1"
