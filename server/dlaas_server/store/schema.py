"""Tables, named statements, and numbered migrations, which only go forward."""

from __future__ import annotations

from typing import Final

MIGRATIONS: Final[tuple[str, ...]] = (
    """
    CREATE TABLE events (
        row INTEGER PRIMARY KEY,
        at_s REAL NOT NULL,
        job TEXT NOT NULL,
        kind TEXT NOT NULL,
        text TEXT NOT NULL
    ) STRICT;
    CREATE INDEX events_of_job ON events (job, row);
    CREATE TABLE jobs (
        id TEXT PRIMARY KEY,
        number INTEGER NOT NULL UNIQUE,
        owner TEXT NOT NULL,
        name TEXT NOT NULL,
        row INTEGER NOT NULL,
        spec TEXT NOT NULL,
        body TEXT NOT NULL
    ) STRICT;
    CREATE TABLE payloads (
        job TEXT PRIMARY KEY,
        body TEXT NOT NULL
    ) STRICT;
    CREATE TABLE keys (
        owner TEXT NOT NULL,
        key TEXT NOT NULL,
        job TEXT NOT NULL,
        digest TEXT NOT NULL,
        PRIMARY KEY (owner, key)
    ) STRICT;
    """,
    """
    CREATE TABLE settings (
        one INTEGER PRIMARY KEY CHECK (one = 1),
        body TEXT NOT NULL
    ) STRICT;
    CREATE TABLE forecasts (
        job TEXT PRIMARY KEY,
        body TEXT NOT NULL
    ) STRICT;
    """,
    # Jobs of earlier releases begin their replay with their present record.
    """
    ALTER TABLE events ADD COLUMN event TEXT;
    INSERT INTO events (row, at_s, job, kind, text, event)
    SELECT
        last.row + row_number() OVER (ORDER BY jobs.number), last.at_s, jobs.id, '', '',
        '{"kind":"snapshot","format":1,"job":' || body || '}'
    FROM jobs, (
        SELECT
            max(coalesce((SELECT max(row) FROM events), 0), coalesce((SELECT max(row) FROM jobs), 0)) AS row,
            coalesce((SELECT at_s FROM events ORDER BY row DESC LIMIT 1), 0.0) AS at_s
    ) AS last;
    """,
)
FORECASTS_KEPT: Final = 1000
KEYS_KEPT: Final = 1000
"""Number of keys of deleted jobs that identify repeated requests; the newest also determine the next number."""
POOL_EVENTS_KEPT: Final = 1000
EVENTS_KEPT: Final = 5000
"""Number of events without a text after which a job's replay begins with a snapshot."""
SNAPSHOT: Final = """'{"kind":"snapshot","format":1,"job":' || body || '}'"""
DELETES_SECURELY: Final = 0x444C4153
"""The `application_id` of a store of which nothing that was deleted is left on unused pages."""
ADD_FREE_PAGES: Final = """
BEGIN IMMEDIATE; CREATE TABLE pages (x); INSERT INTO pages VALUES (zeroblob(262144)); DROP TABLE pages; COMMIT;
"""
"""Leaves 64 free pages in the store, and as many in its log: `secure_delete` writes what is freed."""
EMPTY_LOG: Final = "PRAGMA wal_checkpoint(TRUNCATE)"

INSERT_EVENT: Final = "INSERT INTO events (row, at_s, job, kind, text, event) VALUES (?, ?, ?, ?, ?, ?)"
INSERT_JOB: Final = "INSERT INTO jobs (id, number, owner, name, row, spec, body) VALUES (?, ?, ?, ?, ?, ?, ?)"
INSERT_PAYLOAD: Final = "INSERT INTO payloads (job, body) VALUES (?, ?)"
REPLACE_SETTINGS: Final = "INSERT OR REPLACE INTO settings (one, body) VALUES (1, ?)"
REPLACE_FORECAST: Final = "INSERT OR REPLACE INTO forecasts (job, body) VALUES (?, ?)"
INSERT_KEY: Final = "INSERT INTO keys (owner, key, job, digest) VALUES (?, ?, ?, ?)"
UPDATE_JOB: Final = "UPDATE jobs SET row = ?, body = ? WHERE id = ?"
DELETE_JOB: Final = (
    "DELETE FROM jobs WHERE id = ?",
    "DELETE FROM payloads WHERE job = ?",
    "DELETE FROM events WHERE job = ?",
)
DELETE_KEYS: Final = f"""
    DELETE FROM keys WHERE job NOT IN (SELECT id FROM jobs)
    AND rowid NOT IN (SELECT rowid FROM keys ORDER BY rowid DESC LIMIT {KEYS_KEPT})
"""  # noqa: S608  # a number
DELETE_FORECASTS: Final = f"""
    DELETE FROM forecasts
    WHERE rowid NOT IN (SELECT rowid FROM forecasts ORDER BY rowid DESC LIMIT {FORECASTS_KEPT})
"""  # noqa: S608  # a number
DELETE_POOL_EVENTS: Final = f"""
    DELETE FROM events WHERE job = '' AND kind = 'pool'
    AND row NOT IN (SELECT row FROM events WHERE job = '' AND kind = 'pool' ORDER BY row DESC LIMIT {POOL_EVENTS_KEPT})
"""  # noqa: S608  # a number
COLLECT: Final = (DELETE_KEYS, DELETE_FORECASTS, DELETE_POOL_EVENTS)
"""Statements that remove leftovers of deleted jobs, and the oldest events of the pool."""
SELECT_BLOBS: Final = (
    "SELECT DISTINCT json_extract(file.value, '$.sha256') FROM payloads, json_each(payloads.body, '$.files') AS file"
    " WHERE json_extract(file.value, '$.sha256') IS NOT NULL"
)
REPLACED_JOB: Final = (
    "DELETE FROM jobs WHERE id = ?",
    "DELETE FROM payloads WHERE job = ?",
    "DELETE FROM keys WHERE job = ?",
)
SELECT_NOTICES: Final = "SELECT at_s, text FROM events WHERE job = '' AND kind = 'store' ORDER BY row DESC LIMIT 20"
SELECT_JOBS: Final = "SELECT row, spec, body, id, number, owner FROM jobs ORDER BY number"
SELECT_SETTINGS: Final = "SELECT body FROM settings"
SELECT_FORECASTS: Final = (
    f"SELECT body FROM (SELECT rowid, body FROM forecasts ORDER BY rowid DESC LIMIT {FORECASTS_KEPT}) ORDER BY rowid"  # noqa: S608  # a number
)
SELECT_KEYS: Final = "SELECT owner, key, job, digest FROM keys"
SELECT_LAST_ROW: Final = (
    "SELECT max(coalesce((SELECT max(row) FROM events), 0), coalesce((SELECT max(row) FROM jobs), 0))"
)
SELECT_LAST_TIME: Final = "SELECT at_s FROM events ORDER BY row DESC LIMIT 1"
SELECT_PAYLOAD: Final = "SELECT body FROM payloads WHERE job = ?"
SELECT_HISTORY: Final = "SELECT row, at_s, job, kind, text FROM events WHERE job = ? AND text <> '' ORDER BY row"
SELECT_EVENT_COUNTS: Final = "SELECT job, count(*) FROM events WHERE text = '' GROUP BY job"
COMPACT: Final = (
    f"""
    UPDATE events SET event = (SELECT {SNAPSHOT} FROM jobs WHERE id = events.job)
    WHERE row = (SELECT max(row) FROM events WHERE job = ? AND event IS NOT NULL)
    """,  # noqa: S608  # a constant
    """
    DELETE FROM events WHERE job = ?1 AND text = ''
    AND row < (SELECT max(row) FROM events WHERE job = ?1 AND event IS NOT NULL)
    """,
)
"""Replace a job's newest event by a snapshot, and delete the events before it that have no text."""
SELECT_REPLAY: Final = (
    "SELECT jobs.spec, events.at_s, events.event FROM events JOIN jobs ON jobs.id = events.job"
    " WHERE events.job = ? AND events.event IS NOT NULL ORDER BY events.row"
)
