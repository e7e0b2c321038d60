#!/usr/bin/python3
"""The Node client with a real coordinator and a real agent: runs story.mjs, and stops and starts servers for it."""
import json
import os
import subprocess
import threading
import unittest

from world import Case

HERE = os.path.dirname(os.path.abspath(__file__))


class Node(Case):
    def test_story(self):
        asked, to_ask = os.pipe()
        to_answer, answers = os.pipe()
        environment = {**os.environ, "COORDINATOR_URL": self.world.url, "MYCOJOBS_TOKEN": self.world.token}
        command = f"exec node {os.path.join(HERE, 'story.mjs')} 3>&{to_ask} 4<&{to_answer}"
        story = subprocess.Popen(["bash", "-c", command], env=environment, pass_fds=(to_ask, to_answer))
        for each in (to_ask, to_answer):
            os.close(each)
        serving = threading.Thread(target=self.serve, args=(asked, answers))
        serving.start()
        try:
            self.assertEqual(story.wait(240), 0)
        finally:
            story.kill()
            story.wait()
            serving.join()

    def serve(self, asked, answers):
        world = self.world
        commands = {
            "stop": world.stop_coordinator,
            "start": world.start_coordinator,
            "lose": lambda: setattr(world.relay, "lose_answers", 1),
            "cut": world.relay.cut,
            "begin_count": world.relay.begin_count,
            "end": lambda: None,
            "count": lambda: {"most_open": world.relay.most_open, "requests": world.relay.requests},
        }
        with open(asked, encoding="utf-8") as lines, open(answers, "w", encoding="utf-8") as out:
            for line in lines:
                out.write(json.dumps(commands[line.strip()]()) + "\n")
                out.flush()
                if line == "end\n":
                    break


if __name__ == "__main__":
    unittest.main()
