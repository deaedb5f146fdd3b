#!/bin/busybox sh
# The first program of the virtual machine. It loads modules, says `ready` on the second serial port, and waits there for the
# line `run PROGRAM ARGUMENTS`: a program in the directory that the host shares. The program's exit status ends the machine.
/bin/busybox --install -s /bin
export PATH=/bin HOME=/root
mount -t devtmpfs devtmpfs /dev
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /tmp
ln -s /proc/self/fd /dev/fd
while read -r module; do
    modprobe "$module" || echo "init: cannot load $module"
done </lib/modules/load
ip link set lo up

# QEMU's exit status is twice this byte plus one.
finish() {
    printf "\\x$(printf %02x "$1")" | dd of=/dev/port bs=1 seek=244 count=1 2>/dev/null
    poweroff -f
}

stty -F /dev/ttyS1 raw -echo
exec 3<>/dev/ttyS1
echo ready >&3
read -r command program arguments <&3
[ "$command" = run ] || { echo "init: unknown command $command"; finish 127; }
# The machine can have been saved before and resumed now: only now is the directory the one of this run.
mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144 test /test || finish 127
if [ -d /test/libraries ]; then
    # Over what may be there: the machine's own programs need none.
    cp -r /test/libraries/. / || finish 127
fi
cp "/test/$program" "/run/$program" && chmod 755 "/run/$program" || finish 127
# shellcheck disable=SC2086 # several arguments
"/run/$program" $arguments
status=$?
sync
# 127 says that the program did not start, and there is no room for more.
[ $status -gt 126 ] && status=126
finish $status
