-- What is known of candidates, as its owners write it, and the one table that is
-- computed from it: candidate_score. Periods are yyyyMM numbers; there is one
-- row a candidate and period, and no history of it.
CREATE SCHEMA IF NOT EXISTS scores;

CREATE DOMAIN scores.period AS integer CHECK (VALUE BETWEEN 100001 AND 999912 AND VALUE % 100 BETWEEN 1 AND 12);

-- One observation: a value of 0 to 100 for one of the eight dimensions, with its weight.
CREATE TABLE scores.candidate_fact (
  candidate_id bigint        NOT NULL CHECK (candidate_id > 0),
  id           bigint        NOT NULL CHECK (id > 0),
  period       scores.period NOT NULL,
  dimension    smallint      NOT NULL CHECK (dimension BETWEEN 1 AND 8),
  value        numeric(5,2)  NOT NULL CHECK (value BETWEEN 0 AND 100),
  weight       numeric(6,3)  NOT NULL DEFAULT 1 CHECK (weight > 0),
  PRIMARY KEY (candidate_id, id)
);
CREATE INDEX candidate_fact_period ON scores.candidate_fact (candidate_id, period, dimension) INCLUDE (value, weight);
CREATE INDEX candidate_fact_range ON scores.candidate_fact (period, candidate_id);

-- The dimensions' weighted means, NULL without a fact, and the mean of those that
-- are there. Written by the refresh alone.
CREATE TABLE scores.candidate_score (
  candidate_id    bigint        NOT NULL CHECK (candidate_id > 0),
  period          scores.period NOT NULL,
  skills          numeric(5,2),
  experience      numeric(5,2),
  education       numeric(5,2),
  interview       numeric(5,2),
  feedback        numeric(5,2),
  reliability     numeric(5,2),
  activity        numeric(5,2),
  fit             numeric(5,2),
  total           numeric(5,2),
  refresh_version bigint        NOT NULL DEFAULT 1 CHECK (refresh_version >= 1),
  refreshed_at    timestamptz   NOT NULL DEFAULT now(),
  PRIMARY KEY (candidate_id, period)
);
