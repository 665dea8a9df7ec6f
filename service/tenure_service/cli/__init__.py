"""The `tenure` command: servers, workers, the first ten minutes, and everything the RPCs can do.

    command        parses, calls, and turns exceptions into a sentence and an exit code
    exits          the exit codes
    parser         all commands with their flags; `flags` has the groups that several of them take
    show           tables for people, JSON for scripts
    remote         the client of a server, for the commands that ask one

    dev            `tenure dev`: PostgreSQL, server and worker in one terminal
    hold           the lock of a folder that `tenure dev` uses
    watch          which files a worker is made of, and whether they changed
    reload         the worker of `tenure dev`, replaced when they did
    unserved       tasks that wait for a handler that nobody has registered
    new            `tenure new`, with `scaffold` for the text of the files
    apps           finds the app that `module:name` means
    worker         `tenure worker`
    server, schema, settings        `tenure server`, `migrate`, `config`
    tasks, runs, dead_letters, registry   the rest
    run_check      `tenure run check`: open runs against the code at hand

`tenure --help` must be quick (a test looks at what it imports), and `tenure task list` must work where only the
SDK is installed. So `command` and `parser` import nothing heavy: a command's module is imported
when it is called, and modules import grpc, pydantic, rich and the server where they use them.
"""
