#!/bin/bash
cp -a /payload/usr /
systemctl daemon-reload
uname -r; cat /proc/uptime
mkdir -p /etc/mycojobs; printf 'redis = "redis://127.0.0.1:6379"\nrunner = 20\nslots=2\n' >/etc/mycojobs/config.toml
time systemctl start mycojobs-agent
systemctl status mycojobs-agent --no-pager
journalctl -u mycojobs-agent --no-pager | tail -30
cd /sys/fs/cgroup/system.slice/mycojobs-agent.service && { find . -type d; cat cgroup.controllers cgroup.subtree_control; ls mycojobs-*/
mount | grep cgroup
time systemd-run --wait --pipe -q -p Delegate=yes mycojobs doctor
cat /proc/uptime
echo 'import os; print("hi", os.getpid())' >/tmp/a.py
time mycojobs run /tmp/a.py
time mycojobs run /tmp/a.py
find . -type d; ls -la; cat */memory.peak; }
systemd-analyze verify /usr/local/lib/systemd/system/mycojobs-agent.service
echo end of rows
