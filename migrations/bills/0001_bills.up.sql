-- Payment facts as their owners write them, and the one table that is computed
-- from them: bill_snapshot. Months are yyyyMM numbers. Amounts are decimals.
--
-- station_id is the distribution column: it is in the primary key and in every
-- unique index of the tables that grow with bills, and whoever works on a scope
-- always asks with it. Where facts meet, they meet within one station.
CREATE SCHEMA IF NOT EXISTS bills;

CREATE DOMAIN bills.month AS integer CHECK (VALUE BETWEEN 100001 AND 999912 AND VALUE % 100 BETWEEN 1 AND 12);

-- A text that says something; blanks are none.
CREATE FUNCTION bills.filled(text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE
  RETURN CASE WHEN btrim($1, E' \t\r\n') <> '' THEN $1 END;

-- The ledger of differences: one row a bill.
CREATE TABLE bills.income_difference (
  station_id         bigint      NOT NULL CHECK (station_id > 0),
  id                 bigint      NOT NULL CHECK (id > 0),
  bill_month         bills.month NOT NULL,
  partner_org_id     bigint      NOT NULL,
  -- A bill is found by its partner's id for it, or, where it has none, by the small station's number.
  partner_bill_id    bigint,
  small_bill_id      bigint,
  small_station_no   text        CHECK (small_station_no <> ''),
  project_company_id bigint,
  created_at         timestamptz NOT NULL DEFAULT now(),
  updated_at         timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (station_id, id)
);
CREATE INDEX income_difference_scope ON bills.income_difference (station_id, bill_month, id);
CREATE INDEX income_difference_bill ON bills.income_difference (station_id, bill_month, partner_bill_id) WHERE partner_bill_id IS NOT NULL;
CREATE INDEX income_difference_small ON bills.income_difference (station_id, bill_month, small_station_no) WHERE partner_bill_id IS NULL;
-- What a request can name: ids, months, companies, partners.
CREATE INDEX income_difference_id ON bills.income_difference (id) INCLUDE (station_id, bill_month);
CREATE INDEX income_difference_month ON bills.income_difference (bill_month, station_id);
CREATE INDEX income_difference_company ON bills.income_difference (project_company_id, bill_month, station_id);
CREATE INDEX income_difference_partner ON bills.income_difference (partner_org_id, bill_month, station_id);

-- Payment orders. One order has lines of many stations; orders are few.
CREATE TABLE bills.payment_order (
  id                      bigint   PRIMARY KEY CHECK (id > 0),
  payment_order_no        text     NOT NULL UNIQUE,
  status                  smallint NOT NULL, -- 40 waits for payment, 50 paid; others are not alive
  payment_type            smallint NOT NULL, -- 10 by the treasury, 20 offline
  settlement_month        bills.month,
  current_publish_version bigint   NOT NULL DEFAULT 1,
  submit_round            integer  NOT NULL DEFAULT 1,
  review_plan_id          bigint,
  deleted                 boolean  NOT NULL DEFAULT false,
  created_at              timestamptz NOT NULL DEFAULT now(),
  updated_at              timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE bills.payment_order_bill (
  station_id             bigint   NOT NULL CHECK (station_id >= 0),
  id                     bigint   NOT NULL CHECK (id > 0),
  bill_month             bills.month,
  payment_order_id       bigint   NOT NULL,
  data_version           bigint   NOT NULL DEFAULT 1,
  submit_round           integer  NOT NULL DEFAULT 1,
  line_no                integer  NOT NULL DEFAULT 0,
  line_type              smallint NOT NULL, -- 10 PAYABLE
  line_status            smallint NOT NULL,
  diff_id                bigint,
  partner_org_id         bigint   NOT NULL,
  partner_bill_id        bigint,
  small_bill_id          bigint,
  small_station_no       text     CHECK (small_station_no <> ''),
  project_company_id     bigint,
  current_payment_amount numeric(18,2) NOT NULL,
  -- The card the income is shared to: who is to be paid.
  sharing_card_name      text,
  sharing_card_bank      text,
  sharing_card_no        text,
  deleted                boolean  NOT NULL DEFAULT false,
  created_at             timestamptz NOT NULL DEFAULT now(),
  updated_at             timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (station_id, id)
);
CREATE INDEX payment_order_bill_diff ON bills.payment_order_bill (station_id, bill_month, diff_id);
CREATE INDEX payment_order_bill_bill ON bills.payment_order_bill (station_id, bill_month, partner_bill_id) WHERE partner_bill_id IS NOT NULL;
-- A review's lines of one scope, in the order of their ids; an order's scopes.
CREATE INDEX payment_order_bill_order ON bills.payment_order_bill (payment_order_id, station_id, bill_month, id);

-- Payment results. A result that is taken back is deleted, physically.
CREATE TABLE bills.payment_result (
  station_id       bigint   NOT NULL CHECK (station_id > 0),
  id               bigint   NOT NULL CHECK (id > 0),
  bill_month       bills.month NOT NULL,
  partner_org_id   bigint   NOT NULL,
  partner_bill_id  bigint,
  small_station_no text     CHECK (small_station_no <> ''),
  order_bill_id    bigint,
  result_status    smallint NOT NULL, -- 10 waits, 20 being paid, 30 success, 40 failed
  result_type      smallint NOT NULL, -- 10 normal
  result_source    smallint NOT NULL, -- 10 treasury, 20 offline
  paid_amount      numeric(18,2) NOT NULL DEFAULT 0,
  paid_time        timestamptz,
  fail_reason      text,
  created_at       timestamptz NOT NULL DEFAULT now(),
  updated_at       timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (station_id, id)
);
CREATE INDEX payment_result_bill ON bills.payment_result (station_id, bill_month, partner_bill_id) WHERE partner_bill_id IS NOT NULL;
CREATE INDEX payment_result_small ON bills.payment_result (station_id, bill_month, small_station_no) WHERE partner_bill_id IS NULL;

-- Rows of imported payment files.
CREATE TABLE bills.import_record (
  station_id         bigint   NOT NULL CHECK (station_id >= 0),
  id                 bigint   NOT NULL CHECK (id > 0),
  bill_month         bills.month,
  import_batch_no    text     NOT NULL,
  row_no             integer  NOT NULL DEFAULT 0,
  record_status      smallint NOT NULL, -- 20 became a payment result
  payment_result_id  bigint,
  payee_account_name text,
  payee_open_bank    text,
  payee_account_no   text,
  created_at         timestamptz NOT NULL DEFAULT now(),
  updated_at         timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (station_id, id)
);
CREATE INDEX import_record_result ON bills.import_record (station_id, payment_result_id) WHERE record_status = 20;
CREATE INDEX import_record_batch ON bills.import_record (import_batch_no, station_id, bill_month);

-- What was pushed to the treasury, and how each push stands.
CREATE TABLE bills.push_batch_detail (
  station_id           bigint   NOT NULL CHECK (station_id > 0),
  id                   bigint   NOT NULL CHECK (id > 0),
  source_order_bill_id bigint   NOT NULL,
  status               smallint NOT NULL DEFAULT 10 CHECK (status IN (10, 20, 30, 40)), -- 30 and 40 are terminal
  deleted              boolean  NOT NULL DEFAULT false,
  created_at           timestamptz NOT NULL DEFAULT now(),
  updated_at           timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (station_id, id)
);
CREATE INDEX push_batch_detail_line ON bills.push_batch_detail (station_id, source_order_bill_id) WHERE NOT deleted;

-- The review's callback, once an attempt.
CREATE TABLE bills.review_progress (
  id                  bigint   PRIMARY KEY CHECK (id > 0),
  payment_order_id    bigint   NOT NULL,
  data_version        bigint   NOT NULL,
  submit_round        integer  NOT NULL,
  approval_attempt    integer  NOT NULL,
  review_plan_id      bigint   NOT NULL,
  review_passed       boolean  NOT NULL DEFAULT false,
  main_task_status    text     NOT NULL DEFAULT 'PENDING',
  payable_count       integer  NOT NULL DEFAULT 0,
  target_order_status smallint,
  finalize_time       timestamptz,
  created_at          timestamptz NOT NULL DEFAULT now(),
  updated_at          timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX review_progress_order ON bills.review_progress (payment_order_id, data_version, submit_round DESC, approval_attempt DESC, id DESC)
  WHERE review_passed;

CREATE TABLE bills.order_approval (
  id               bigint  PRIMARY KEY CHECK (id > 0),
  payment_order_id bigint  NOT NULL,
  data_version     bigint  NOT NULL,
  submit_round     integer NOT NULL,
  approval_attempt integer NOT NULL,
  review_plan_id   bigint  NOT NULL,
  approval_status  text    NOT NULL,
  created_at       timestamptz NOT NULL DEFAULT now(),
  updated_at       timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX order_approval_order ON bills.order_approval (payment_order_id, data_version, approval_attempt, review_plan_id);

-- A closed interval of an order's lines whose statuses are refreshed together.
CREATE TABLE bills.status_shard (
  id                  bigint  PRIMARY KEY CHECK (id > 0),
  source_type         text    NOT NULL,
  source_id           bigint  NOT NULL,
  payment_order_id    bigint  NOT NULL,
  data_version        bigint  NOT NULL,
  submit_round        integer NOT NULL,
  approval_attempt    integer NOT NULL,
  review_plan_id      bigint  NOT NULL,
  first_order_bill_id bigint  NOT NULL,
  last_order_bill_id  bigint  NOT NULL CHECK (last_order_bill_id >= first_order_bill_id),
  status              text    NOT NULL DEFAULT 'PENDING',
  deleted             boolean NOT NULL DEFAULT false,
  created_at          timestamptz NOT NULL DEFAULT now(),
  updated_at          timestamptz NOT NULL DEFAULT now()
);

-- What the pages read: one row a bill, written by the refresh alone, and there
-- only inside the transaction of a claimed scope.
CREATE TABLE bills.bill_snapshot (
  station_id                    bigint      NOT NULL CHECK (station_id > 0),
  id                            bigint      NOT NULL,
  diff_id                       bigint      NOT NULL,
  bill_month                    bills.month NOT NULL,
  -- Frozen by the review that let the bill in.
  partner_org_id                bigint      NOT NULL,
  partner_bill_id               bigint,
  small_bill_id                 bigint,
  small_station_no              text,
  project_company_id            bigint,
  sharing_card_name             text,
  sharing_card_bank             text,
  sharing_card_no               text,
  latest_payment_order_id       bigint,
  latest_order_bill_id          bigint,
  payment_order_no              text,
  settlement_month              bills.month,
  planned_amount                numeric(18,2) NOT NULL DEFAULT 0,
  -- Computed from the payment facts.
  actual_paid_amount            numeric(20,2) NOT NULL DEFAULT 0,
  difference_amount             numeric(20,2) NOT NULL DEFAULT 0,
  anomaly_flag                  smallint    NOT NULL DEFAULT 10 CHECK (anomaly_flag IN (10, 20)),
  treasury_fail_amount          numeric(20,2) NOT NULL DEFAULT 0,
  fail_reason                   text        NOT NULL DEFAULT '',
  payment_count                 integer     NOT NULL DEFAULT 0,
  fail_count                    integer     NOT NULL DEFAULT 0,
  latest_payment_time           timestamptz,
  latest_update_time            timestamptz,
  bill_dimension_payment_status smallint    NOT NULL DEFAULT 0 CHECK (bill_dimension_payment_status IN (0, 30, 40, 60)),
  external_payment_status       smallint    NOT NULL DEFAULT 2 CHECK (external_payment_status IN (2, 3, 4, 5, 6)),
  data_source_list              smallint[]  NOT NULL DEFAULT '{}',
  latest_status_time            timestamptz,
  latest_status_rank            smallint    NOT NULL DEFAULT 1 CHECK (latest_status_rank IN (1, 2, 3)),
  payee_account_name            text,
  payee_open_bank               text,
  payee_account_no              text,
  snapshot_status               smallint    NOT NULL DEFAULT 20,
  refresh_version               bigint      NOT NULL DEFAULT 1 CHECK (refresh_version >= 1),
  last_refresh_time             timestamptz NOT NULL DEFAULT now(),
  refresh_source                text        NOT NULL DEFAULT '',
  created_at                    timestamptz NOT NULL DEFAULT now(),
  updated_at                    timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (station_id, id),
  CONSTRAINT a_row_is_its_difference CHECK (id = diff_id),
  CONSTRAINT difference_is_actual_less_planned CHECK (difference_amount = actual_paid_amount - planned_amount)
-- A refresh changes no indexed column; with room on the page it touches no index.
) WITH (fillfactor = 70);
-- The pages: newest month first. The others narrow by what people choose.
CREATE INDEX bill_snapshot_list ON bills.bill_snapshot (bill_month, station_id, id);
CREATE INDEX bill_snapshot_station ON bills.bill_snapshot (station_id, bill_month, id);
CREATE INDEX bill_snapshot_partner ON bills.bill_snapshot (partner_org_id, bill_month, station_id, id);
CREATE INDEX bill_snapshot_company ON bills.bill_snapshot (project_company_id, bill_month, station_id, id);
CREATE INDEX bill_snapshot_order ON bills.bill_snapshot (payment_order_no, bill_month, station_id, id);
-- The scope of a difference that is gone.
CREATE INDEX bill_snapshot_diff ON bills.bill_snapshot (diff_id) INCLUDE (station_id, bill_month);
