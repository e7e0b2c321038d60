echo ready
sleep 3600
