"""Runs several requests at the same time with asyncio. Each has a time limit, and may fail alone."""

import asyncio
import random


async def look_at(name):
    await asyncio.sleep(random.uniform(0.001, 0.02))
    if name == "site 3":
        await asyncio.sleep(60)
    return len(name)


async def look_at_all():
    names = [f"site {number}" for number in range(1, 6)]

    async def bounded(name):
        try:
            async with asyncio.timeout(0.5):
                return name, await look_at(name)
        except TimeoutError:
            print(name, "did not answer")
            return name, None

    return dict(await asyncio.gather(*map(bounded, names)))


answers = asyncio.run(look_at_all())
result["answers"] = answers
result["silent"] = [name for name, answer in answers.items() if answer is None]
