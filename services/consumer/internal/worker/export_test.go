package worker

// OnPages has f called before pages of the table are read from one on, and
// OnHashed once contents were hashed as it lies, before they are scanned.
func (w *Worker) OnPages(f func(from int64)) { w.onPages = f }
func (w *Worker) OnHashed(f func())          { w.onHashed = f }
