"""Would run for ever; its time limit ends it."""
import time

print("waiting for the end of time", flush=True)
while True:
    time.sleep(3600)
