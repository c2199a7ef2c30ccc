# Counts up to STEPS steps and prints a hash of all of them: job.py STATE [STEPS] [SECONDS for each].
# Continues from the file STATE, which is replaced after every step.
import hashlib, os, sys, time

state = sys.argv[1]
steps = int(sys.argv[2]) if len(sys.argv) > 2 else int(os.environ.get("STEPS", "40"))
pause = float(sys.argv[3]) if len(sys.argv) > 3 else float(os.environ.get("PAUSE", "0.5"))
step, value = 0, ""
if os.path.exists(state):
    step, value = open(state).read().split()
    step = int(step)
print("begins at", step, flush=True)
while step < steps:
    time.sleep(pause)
    step += 1
    value = hashlib.sha256(f"{value}{step}".encode()).hexdigest()
    with open(state + ".new", "w") as file:
        file.write(f"{step} {value}")
    os.rename(state + ".new", state)
print("sum", value, flush=True)
