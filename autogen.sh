#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# autogen.sh: makes ./configure from configure.ac, after a checkout and after changes to configure.ac, m4/ or a .am file. Needs autoconf,
# automake and pkg-config. Its options go to autoreconf.
set -eu
cd "$(dirname "$0")"
autoreconf --force --install "$@"
