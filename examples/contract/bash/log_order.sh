for number in $(seq 1 200); do echo "line $number"; done
