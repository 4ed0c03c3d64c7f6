"""What the chapters and labs show: figures, steppers, exercises."""
