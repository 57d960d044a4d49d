#!/bin/sh
# Tests of the page run in Chromium. Installs Debian's where that can be done; otherwise says what to install.
set -eu

for name in chromium chromium-browser google-chrome; do
    if command -v "$name" >/dev/null; then exit 0; fi
done

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "Installing Chromium for the tests of the page: this takes half a minute, once."
    export DEBIAN_FRONTEND=noninteractive
    apt-get install -qq -y --no-install-recommends chromium >/dev/null 2>&1 ||
        { apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium >/dev/null; } ||
        echo "Chromium could not be installed: the tests of the page do not run without it." >&2
else
    echo "There is no Chromium: the tests of the page do not run without it. On Debian: apt-get install chromium" >&2
fi
