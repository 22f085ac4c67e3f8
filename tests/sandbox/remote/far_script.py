"""A worker elsewhere that imports nothing of the product, speaks its frames, and misbehaves as a candidate's source says.

`python far_script.py FOLDER START…`: FOLDER holds the texts of the answers; START is how it begins. A line `once ACT` of a
source is done by the first worker of a test only.
"""

import json
import os
import sys
import time
from pathlib import Path

FOLDER, STARTS = Path(sys.argv[1]), sys.argv[2:]
TEXT = {path.stem: path.read_text() for path in FOLDER.glob("*.json")}


def say(text, length=None):
    data = text.encode()
    sys.stdout.buffer.write(b"cudal2-worker:%d %b\n" % (len(data) if length is None else length, data))
    sys.stdout.buffer.flush()


def told(id_, **answer):
    say(json.dumps({"message": "told", "id": id_, "answer": answer}))


def judged(id_, position=0, worked_s=0.25):
    told(id_, message="judged", position=position, worked_s=worked_s, evaluation=json.loads(TEXT["evaluation"]))


def end(id_):
    told(id_, message="end", worked_s=0.5)


def once(act):
    try:
        (FOLDER / act.replace(" ", "-")).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def misbehave(act, id_, position):
    match act:
        case "die":
            sys.stderr.write("slurmstepd: error: the node failed\n")
            os._exit(3)
        case "hang":
            time.sleep(60)
        case "twice":
            judged(id_, position)
            judged(id_, position)
        case "elsewhere":
            judged(id_, 7)
        case "nothing":
            end(id_)
        case "garbage":
            say('{"message": "told", "id": 5}')
        case "cut":
            say('{"message": "working"}', length=999)
        case "flood":
            while True:
                say('{"message": "working", "worked_s": {}}' + " " * 4096)
        case "beats":
            while True:
                say(json.dumps({"message": "working", "worked_s": {id_: 1e9}}))
                time.sleep(0.05)
        case "stale":
            judged("0" * 32, position)
            print("a note of a module")
        case "built":
            told(id_, message="built", position=position, built=json.loads(TEXT["built"]))
        case "secret":
            told(id_, message="error", kind="MachineError", reason=" ".join(sorted(os.environ)))
            return True
    return False


def answer(call):
    id_, deed = call["id"], call["deed"]
    with (FOLDER / "asked.txt").open("a") as log:
        log.write(f"{deed['do']} {call['pin']}\n")
    if deed["do"] == "open":
        told(id_, **json.loads(TEXT["opened"]))
    for position, candidate in enumerate(deed.get("candidates", ())):
        for line in candidate["source"].splitlines():
            act = line.removeprefix("once ")
            if (act == line or once(act)) and misbehave(act, id_, position):
                return
        if deed["do"] == "build":
            built = {**json.loads(TEXT["built"]), "candidate": candidate}
            told(id_, message="built", position=position, built=built)
        else:
            told(id_, message="event", event={"event": "stage_started", "candidate_id": "c", "stage": "verify"})
            judged(id_, position)
    end(id_)


def main():
    for start in STARTS:
        match start:
            case "banner":
                print("Welcome to gpu1\nlast login: yesterday", flush=True)
                sys.stdout.write("prompt without an end> ")
                sys.stdout.flush()
            case "late":
                time.sleep(0.5)
            case "never":
                time.sleep(60)
            case "ends":
                print("Permission denied (publickey).", file=sys.stderr)
                return 255
            case "chatter":
                while True:
                    print("x" * 1000)
            case "second-fails":
                if not once("started"):
                    return 1
    say(TEXT["hello"])
    for line in sys.stdin:
        asked = json.loads(line.partition(" ")[2])
        if asked["message"] == "call":
            answer(asked)
    (FOLDER / "ended").touch()
    return 0


sys.exit(main())
