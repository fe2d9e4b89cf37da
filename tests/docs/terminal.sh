# The first line of every block that a test types: `. terminal.sh NAME`, where NAME.* are files that bash and test share.
#
# A reader has one terminal on a machine: what a block sets for the shell and its working folder is there for the next one.
# NAME.progress tells, a line each, when (seconds since 1970) the command in which line of the script began, and the end.
# NAME.pid is the process group. A signal to it ends what runs in it, and bash ends as that does.

printf '%s\n' "$$" > "$1.pid"
if [ -e "$1.before" ]; then . "$1.before"; fi
trap : TERM
trap "{ export -p; printf 'cd %q\n' \"\$PWD\"; } > '$1.after'; printf 'end %s\n' \"\${EPOCHREALTIME/,/.}\" >> '$1.progress'" EXIT
set -e
trap "printf '%s %s\n' \"\$LINENO\" \"\${EPOCHREALTIME/,/.}\" >> '$1.progress'" DEBUG
