"""Never ends; the time limit ends the job."""
import time

print("waiting for the end of time", flush=True)
while True:
    time.sleep(3600)
