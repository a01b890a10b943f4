#!/bin/sh
# install URL | publish URL: installs openshell-tiny from the registry at URL and uses it, or publishes a package there.
# NODE and NPM (its npm-cli.js) say which.
set -eu
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
cd "$directory"
host=${2#https:}
printf '%s\n' "registry=$2" "cache=$directory/cache" 'update-notifier=false' fund=false audit=false fetch-retries=0 \
    "${host%/}/:_authToken=none" >.npmrc
export npm_config_userconfig="$directory/.npmrc" npm_config_globalconfig=/dev/null HOME="$directory"
case $1 in
install)
    echo '{"name": "user", "version": "1.0.0"}' >package.json
    "$NODE" "$NPM" install --silent openshell-tiny || { "$NODE" "$NPM" install openshell-tiny; exit 1; }
    "$NODE" -e 'console.log(require("openshell-tiny"), "npm")'
    ;;
publish)
    echo '{"name": "openshell-made", "version": "1.0.0"}' >package.json
    "$NODE" "$NPM" publish
    echo reached publish
    ;;
esac
