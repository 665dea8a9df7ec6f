"""The demo's one task: count the tokens of a Python source file."""

import collections
import tokenize

from tenure import App, Retry

app = App("demo")


@app.task(retry=Retry(3, initial_delay=0.2, max_delay=1))
def count_tokens(path: str) -> dict[str, int]:
    """Counts the tokens of a file by their type; a file that is no Python raises."""
    with tokenize.open(path) as file:
        tokens = tokenize.generate_tokens(file.readline)
        return dict(collections.Counter(tokenize.tok_name[token.type] for token in tokens))
