-- How far the host's outbox was read; the outbox itself is only read.
CREATE TABLE lockstep.delivery_position (
  outbox        text   PRIMARY KEY,
  xid           xid8   NOT NULL DEFAULT '0',
  id            bigint NOT NULL DEFAULT 0,
  -- The database that the numbers belong to. Another one counts its
  -- transactions anew, so its outbox is read from the beginning.
  source_system text   NOT NULL,
  updated_at    timestamptz NOT NULL DEFAULT now()
);

-- What is to be sent: one row a consumer and record, however often it changed.
CREATE TABLE lockstep.delivery (
  delivery_id   uuid   PRIMARY KEY DEFAULT gen_random_uuid(),
  consumer      text   NOT NULL CHECK (consumer <> ''),
  tenant_id     bigint NOT NULL,
  collection_id text   NOT NULL CHECK (collection_id <> ''),
  record_key    bytea  NOT NULL,
  -- SENDING is held by a worker. FAILED stays until it is replayed or the record
  -- changes; DROPPED has nothing that could be sent.
  state         text   NOT NULL DEFAULT 'PENDING' CHECK (state IN ('PENDING', 'SENDING', 'DONE', 'FAILED', 'DROPPED')),
  -- Rises with every change of the record. A conclusion counts for the
  -- generation that was taken.
  generation    bigint NOT NULL DEFAULT 1 CHECK (generation >= 1),
  taken_generation bigint NOT NULL DEFAULT 0,
  attempts      integer NOT NULL DEFAULT 0 CHECK (attempts >= 0),
  code          text   NOT NULL DEFAULT '',
  -- What the consumer answered to the newest attempt that reached it.
  outcome       text   NOT NULL DEFAULT '' CHECK (outcome IN ('', 'APPLIED', 'DUPLICATE', 'OLDER', 'CONFLICT', 'RETIRED')),
  revision      bigint,
  event_id      text   NOT NULL DEFAULT '',
  due_at        timestamptz NOT NULL DEFAULT now(),
  claim_token   uuid,
  claimed_by    text,
  claimed_at    timestamptz,
  lease_until   timestamptz,
  created_at    timestamptz NOT NULL DEFAULT now(),
  updated_at    timestamptz NOT NULL DEFAULT now(),
  ended_at      timestamptz,

  UNIQUE (consumer, tenant_id, collection_id, record_key),
  CHECK ((claim_token IS NULL) = (claimed_by IS NULL)),
  CHECK ((claim_token IS NULL) = (claimed_at IS NULL)),
  CHECK ((claim_token IS NULL) = (lease_until IS NULL)),
  CHECK ((claim_token IS NOT NULL) = (state = 'SENDING')),
  CHECK ((ended_at IS NOT NULL) = (state IN ('DONE', 'FAILED', 'DROPPED'))),
  CHECK (state NOT IN ('FAILED', 'DROPPED') OR code <> '')
);
CREATE INDEX delivery_due ON lockstep.delivery (due_at, delivery_id) WHERE state = 'PENDING';
CREATE INDEX delivery_lease ON lockstep.delivery (lease_until) WHERE claim_token IS NOT NULL;
CREATE INDEX delivery_failed ON lockstep.delivery (updated_at DESC, delivery_id DESC) WHERE state = 'FAILED';
CREATE INDEX delivery_ended ON lockstep.delivery (ended_at) WHERE state IN ('DONE', 'DROPPED');
