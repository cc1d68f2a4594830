DROP TABLE bills.bill_snapshot, bills.status_shard, bills.order_approval, bills.review_progress, bills.push_batch_detail,
  bills.import_record, bills.payment_result, bills.payment_order_bill, bills.payment_order, bills.income_difference;
DROP FUNCTION bills.filled(text);
DROP DOMAIN bills.month;
DROP SCHEMA bills;
